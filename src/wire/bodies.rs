//! Bodies that are JSON, as serde types. Written with [`fastjson::to_vec`], read with
//! [`fastjson::from_object`]; members are in Java's alphabetical order, absent ones are left out.
//!
//! Reading is tolerant where clients differ: numbers as text, null for "none", enumerations as
//! names or ordinals (an unknown one is `None`), members that only newer versions know.
//!
//! [`fastjson::to_vec`]: super::fastjson::to_vec
//! [`fastjson::from_object`]: super::fastjson::from_object

mod groups;
mod register;
mod routes;
mod topics;

pub use super::fastjson::{MessageQueue, QueueMap};
pub use groups::{
    ConsumeFromWhere, ConsumeType, ConsumerData, ConsumerIdList, HeartbeatData, LockRequest,
    LockResponse, MessageModel, OffsetTable, ProducerData, SubscriptionData,
    SubscriptionGroupConfig, SubscriptionGroupTable,
};
pub use register::{RegisterBody, RegisterBodyError, TEXT_FORM_VERSION_MIN, WRAPPED_VERSION_MIN};
pub use routes::{
    BrokerData, BrokerMemberGroup, ClusterInfo, MemberGroup, QueueData, TopicRouteData,
};
pub use topics::{DataVersion, KvTable, TopicConfig, TopicConfigTable, TopicFilterType, TopicList};

/// An enumeration of Java: a name, or by C++ its ordinal.
macro_rules! java_enum {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Java's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }

            /// Looks a name of Java up.
            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|known| known.name() == name)
            }

            /// Reads a name or an ordinal; an unknown one and null are `None`.
            fn tolerant<'de, D>(deserializer: D) -> Result<Option<$name>, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                use serde::Deserialize;
                Ok(match serde_json::Value::deserialize(deserializer)? {
                    serde_json::Value::String(name) => Self::from_name(&name),
                    serde_json::Value::Number(ordinal) => ordinal
                        .as_u64()
                        .and_then(|at| usize::try_from(at).ok())
                        .and_then(|at| Self::ALL.get(at))
                        .copied(),
                    _ => None,
                })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
use java_enum;

#[cfg(test)]
mod tests;
