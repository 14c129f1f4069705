"""What Metaflow finds of Convoy's: `from metaflow import convoy_gang`."""

STEP_DECORATORS_DESC = [("convoy_gang", ".gang_decorator.ConvoyGangDecorator")]
