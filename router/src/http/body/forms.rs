//! A deserializer around another one that decides which forms of a value are accepted, for all routes and at every
//! level. Where the meaning is clear, it is liberal: a number without a fraction is an integer (`10.0`), and a string is
//! a list of one string. For a struct it accepts an object only: serde's derive would also accept a list of the fields
//! in their order, which no client means.

use std::{fmt, iter};

use serde::de::value::SeqDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// Wraps a deserializer, or the seed of a value inside it.
pub struct Forms<T>(pub T);

/// Wraps the visitor of a type that is a struct or may hold structs.
struct NestedVisitor<V> {
    visitor: V,
    expects: Expects,
}

/// The kind of input that a type is deserialized from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    Struct,
    List,
    Any,
}

/// Wraps the visitor of an integer.
struct IntegerVisitor<V>(V);

/// Forwards methods of the deserializer. `plain` is for types that cannot hold structs, `nested` for those that can, and
/// `integer` for integers: the visitors of the last two are wrapped.
macro_rules! forward {
    (plain: $($method:ident($($name:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($name,)* visitor)
        }
    )*};
    (nested: $($method:ident($($name:ident: $type:ty),*))*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($name,)* NestedVisitor { visitor, expects: Expects::Any })
        }
    )*};
    (integer: $($method:ident())*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(IntegerVisitor(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Forms<D> {
    type Error = D::Error;

    forward! { nested:
        deserialize_any()
        deserialize_option()
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_map()
    }

    forward! { integer:
        deserialize_i8()
        deserialize_i16()
        deserialize_i32()
        deserialize_i64()
        deserialize_i128()
        deserialize_u8()
        deserialize_u16()
        deserialize_u32()
        deserialize_u64()
        deserialize_u128()
    }

    forward! { plain:
        deserialize_bool()
        deserialize_f32()
        deserialize_f64()
        deserialize_char()
        deserialize_str()
        deserialize_string()
        deserialize_bytes()
        deserialize_byte_buf()
        deserialize_unit()
        deserialize_unit_struct(name: &'static str)
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
        deserialize_identifier()
        deserialize_ignored_any()
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        // serde_json's own method for lists would refuse a string before the visitor sees it.
        self.0.deserialize_any(NestedVisitor { visitor, expects: Expects::List })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(NestedVisitor { visitor, expects: Expects::Struct })
    }
}

/// Forwards the methods of a visitor for the plain values of JSON.
macro_rules! forward_values {
    ($($method:ident($type:ty))*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for NestedVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expects == Expects::Struct {
            formatter.write_str("an object")
        } else {
            self.visitor.expecting(formatter)
        }
    }

    forward_values! {
        visit_bool(bool)
        visit_i64(i64)
        visit_u64(u64)
        visit_f64(f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        match self.expects {
            Expects::List => self.visitor.visit_seq(SeqDeserializer::new(iter::once(text))),
            _ => self.visitor.visit_str(text),
        }
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        match self.expects {
            Expects::List => self.visit_str(text),
            _ => self.visitor.visit_borrowed_str(text),
        }
    }

    fn visit_string<E: Error>(self, text: String) -> Result<V::Value, E> {
        match self.expects {
            Expects::List => self.visit_str(&text),
            _ => self.visitor.visit_string(text),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Forms(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Forms(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.expects == Expects::Struct {
            return Err(A::Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.visitor.visit_seq(Forms(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Forms(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(variant)
    }
}

/// The first number that an unsigned integer of 64 bits cannot hold.
const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;
/// The least number that a signed integer of 64 bits can hold. Whole numbers just below it are rounded to it, so as a
/// float it is not accepted.
const MINUS_TWO_TO_63: f64 = -9_223_372_036_854_775_808.0;

impl<'de, V: Visitor<'de>> Visitor<'de> for IntegerVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(formatter)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        if value.fract() != 0.0 {
            self.0.visit_f64(value)
        } else if (0.0..TWO_TO_64).contains(&value) {
            self.0.visit_u64(value as u64)
        } else if value > MINUS_TWO_TO_63 && value < 0.0 {
            self.0.visit_i64(value as i64)
        } else {
            self.0.visit_f64(value)
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.0.visit_bool(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        self.0.visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        self.0.visit_u64(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        self.0.visit_str(text)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Forms<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Forms(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Forms<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Forms(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Forms<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Forms(value))
    }
}
