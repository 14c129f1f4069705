output "bucket" {
  value = aws_s3_bucket.this.bucket
  # Nothing is written before the bucket encrypts and refuses plain HTTP.
  depends_on = [aws_s3_bucket_policy.this, aws_s3_bucket_server_side_encryption_configuration.this]
}

output "bucket_arn" {
  value = aws_s3_bucket.this.arn
}
