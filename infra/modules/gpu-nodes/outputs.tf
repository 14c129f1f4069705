output "types" {
  value       = local.types
  description = "What the catalog knows of each type."
}

output "interfaces" {
  value       = local.interfaces
  description = "Network interfaces of each type: network_card_index, device_index, interface_type (interface, efa or efa-only)."
}
