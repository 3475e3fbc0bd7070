mod model;
mod rows;
mod rules;
