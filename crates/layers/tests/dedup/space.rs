//! What space is taken and given back, and what is told of it; sizes; errors below.
