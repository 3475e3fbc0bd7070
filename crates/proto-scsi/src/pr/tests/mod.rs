mod model;
mod numbers;
mod plan;
mod rows;
mod rules;
