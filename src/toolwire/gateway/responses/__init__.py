"""The Responses endpoints and the state behind them."""
