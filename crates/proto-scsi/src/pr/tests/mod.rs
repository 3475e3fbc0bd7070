mod model;
mod plan;
mod rows;
mod rules;
