//! Offline tools over a store of ringmq or RocketMQ.
