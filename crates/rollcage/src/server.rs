//! HTTP servers that the program offers.

pub(crate) mod capture;
