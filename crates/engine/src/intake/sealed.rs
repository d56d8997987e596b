//! Secrets in a request. They exist in this process only and are never serialised.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A handle to a value that must never be serialised or logged. A deserialised handle is empty.
pub struct Sealed<T>(Option<Arc<T>>);

impl<T> Sealed<T> {
    pub fn new(value: T) -> Self {
        Sealed(Some(Arc::new(value)))
    }

    /// `None` for a deserialised handle.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Sealed(self.0.clone())
    }
}

impl<T> fmt::Debug for Sealed<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl<T> Serialize for Sealed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de, T> Deserialize<'de> for Sealed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Sealed(None))
    }
}
