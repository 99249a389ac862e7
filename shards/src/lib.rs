//! The runtime of ringmq.
