resource "aws_iam_role" "this" {
  name = "${var.name}-launcher"
  tags = { Name = "${var.name}-launcher" }
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_instance_profile" "this" {
  name = "${var.name}-launcher"
  role = aws_iam_role.this.name
  tags = { Name = "${var.name}-launcher" }
}

resource "aws_iam_role_policy_attachment" "session" {
  role       = aws_iam_role.this.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_role_policy_attachment" "given" {
  for_each   = var.policy_arns
  role       = aws_iam_role.this.name
  policy_arn = each.value
}
