mod admission;
mod hosts;
mod inquiry;
mod mode;
mod nexus;
mod reports;
mod told;
