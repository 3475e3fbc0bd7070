mod admission;
mod hosts;
mod inquiry;
mod mode;
mod reports;
