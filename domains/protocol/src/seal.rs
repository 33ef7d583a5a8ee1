//! Keys of a sealed connection, on their way to the process that owns the socket.

use std::fmt;

use serde::{Deserialize, Serialize};
use toroid_fabric::tcp::secure::{Cipher, KEY, Keys};

/// Keys of a sealed connection. The debug output does not show them.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct SealKeys(pub Keys);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    cipher: u8,
    send: [u8; KEY],
    receive: [u8; KEY],
}

impl From<SealKeys> for Fields {
    fn from(SealKeys(keys): SealKeys) -> Self {
        Fields {
            cipher: keys.cipher.code(),
            send: keys.send,
            receive: keys.receive,
        }
    }
}

impl TryFrom<Fields> for SealKeys {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let cipher = Cipher::from_code(fields.cipher);
        Ok(SealKeys(Keys {
            cipher: cipher.ok_or_else(|| format!("no cipher has number {}", fields.cipher))?,
            send: fields.send,
            receive: fields.receive,
        }))
    }
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_and_an_unknown_cipher_is_refused() {
        let keys = SealKeys(Keys {
            cipher: Cipher::AesGcm,
            send: [1; KEY],
            receive: [2; KEY],
        });
        let text = serde_json::to_string(&keys).unwrap();
        assert_eq!(serde_json::from_str::<SealKeys>(&text).unwrap(), keys);
        let other = text.replacen("97", "120", 1);
        let error = serde_json::from_str::<SealKeys>(&other).unwrap_err();
        assert!(error.to_string().contains("no cipher"), "{error}");
    }
}
