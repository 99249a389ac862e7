//! ringmq.
