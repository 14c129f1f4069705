output "instance_id" {
  value = aws_instance.this.id
}

output "security_group_id" {
  value = aws_security_group.this.id
}

output "commands" {
  value = {
    instance_id = aws_instance.this.id
    # A login shell: a plain session would not read the addresses in /etc/profile.d, and starts in /usr/bin.
    shell_command = "${local.session} --document-name AWS-StartInteractiveCommand --parameters command='cd; exec bash -l'"
    # http://localhost:8080 is then the metadata service, as in the profile that `convoy infra connect` writes.
    tunnel_command    = "${local.tunnel} host=${local.service[0]},portNumber=${local.service[1]},localPortNumber=8080"
    ui_tunnel_command = "${local.tunnel} host=${local.ui[0]},portNumber=${local.ui[1]},localPortNumber=${local.ui[1]}"
  }
  description = "How to reach the launcher and, through it, the metadata service and the UI. One tunnel carries one port."
}
