output "file_system_id" {
  value = aws_fsx_lustre_file_system.this.id
}

output "dns_name" {
  value = aws_fsx_lustre_file_system.this.dns_name
}

output "mount_name" {
  value = aws_fsx_lustre_file_system.this.mount_name
}

output "mount_command" {
  value       = "mount -t lustre -o relatime,flock ${aws_fsx_lustre_file_system.this.dns_name}@tcp:/${aws_fsx_lustre_file_system.this.mount_name} /fsx"
  description = "Mounts it at /fsx on a machine that has the Lustre client."
}
