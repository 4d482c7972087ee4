"""Tables and figures as pure functions of rows; one module each."""
