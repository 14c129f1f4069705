"""The event log for other tools: TensorBoard, MLflow and Weights & Biases, live and replayed."""
