# A monthly budget of the account with alerts by e-mail, and what the machines of a stack cost at most.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.100" }
  }
}

locals {
  prices = jsondecode(file("${path.module}/../../../platform/convoy/catalog/prices.json"))
  markets = {
    for market in var.markets : market => {
      for name in var.instance_types : name => [
        for row in local.prices[market] : row
        if row.instance == name && contains(row.regions, var.region)
      ]
    }
  }
  # The newest row of each, absent where no price is known.
  newest = {
    for market, types in local.markets : market => [
      for name, rows in types : merge(
        [for row in rows : row if row.date == reverse(sort(rows[*].date))[0]][0],
        { instance = name }
      ) if length(rows) > 0
    ]
  }
}

resource "aws_budgets_budget" "this" {
  name         = var.name
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.usd_per_month)
  limit_unit   = "USD"

  dynamic "notification" {
    for_each = [["ACTUAL", 50], ["ACTUAL", 80], ["ACTUAL", 100], ["FORECASTED", 100]]
    content {
      notification_type          = notification.value[0]
      threshold                  = notification.value[1]
      threshold_type             = "PERCENTAGE"
      comparison_operator        = "GREATER_THAN"
      subscriber_email_addresses = [var.email]
    }
  }
}
