//! The JSON dialect of Java bodies.
