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

output "file_system" {
  value = {
    gib                   = aws_fsx_lustre_file_system.this.storage_capacity
    mb_per_second_per_tib = aws_fsx_lustre_file_system.this.per_unit_storage_throughput
  }
  description = "What it is paid for by, as `cluster.file_system` of a configuration has it."
}
