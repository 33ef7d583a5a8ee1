//! Values in messages, little-endian.

/// A number with a fixed length in messages.
pub trait Value: Copy {
    /// Appends the number.
    fn put(self, to: &mut Vec<u8>);

    /// The number in these bytes, of which there are enough.
    fn get(from: &[u8]) -> Self;
}

macro_rules! values {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn put(self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn get(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<Self>()];
                bytes.copy_from_slice(from);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}

values!(u8, u32, u64, f32, f64);

impl<T: Value, const N: usize> Value for [T; N] {
    fn put(self, to: &mut Vec<u8>) {
        self.into_iter().for_each(|value| value.put(to));
    }

    fn get(from: &[u8]) -> Self {
        let bytes = size_of::<T>();
        std::array::from_fn(|at| T::get(&from[at * bytes..][..bytes]))
    }
}

/// A message of these values.
pub fn encode<T: Value>(values: &[T]) -> Vec<u8> {
    let mut message = Vec::with_capacity(size_of_val(values));
    values.iter().for_each(|value| value.put(&mut message));
    message
}

/// The values in a message.
pub fn decode<T: Value>(message: &[u8]) -> impl Iterator<Item = T> {
    message.chunks_exact(size_of::<T>()).map(T::get)
}
