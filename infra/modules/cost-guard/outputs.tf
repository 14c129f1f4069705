output "budget" {
  value      = var.name
  depends_on = [aws_budgets_budget.this]
}

output "usd_per_hour" {
  value = {
    for market, rows in local.newest : market => [
      for row in rows : {
        instance_type = row.instance
        nodes         = var.max_nodes
        low           = var.max_nodes * min(row.usd_per_hour...)
        high          = var.max_nodes * max(row.usd_per_hour...)
        date          = row.date
        region        = var.region
        source        = local.prices.sources[row.source]
      }
    ]
  }
  description = "What max_nodes of each type cost an hour, by the newest price known: US dollars, the cheapest zone and the dearest."
}
