//! Writes MessagePack: the few types that events are made of, each in its shortest form.

/// Writes MessagePack; holds the bytes that are written so far.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend(value.to_be_bytes());
    }

    pub fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.0.push(value as u8),
            0x80..=0xff => self.0.extend([0xcc, value as u8]),
            0x100..=0xffff => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
    }

    pub fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..=31 => self.0.push(0xa0 | len as u8),
            len @ 32..=0xff => self.0.extend([0xd9, len as u8]),
            len @ 0x100..=0xffff => self.tagged(0xda, &(len as u16).to_be_bytes()),
            len => self.tagged(0xdb, &(len as u32).to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Begins a list of so many values.
    pub fn array(&mut self, len: usize) {
        self.head(len, 0x90, 0xdc, 0xdd);
    }

    /// Begins a map of so many pairs of a name and a value.
    pub fn map(&mut self, len: usize) {
        self.head(len, 0x80, 0xde, 0xdf);
    }

    pub fn uints(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.array(values.len());
        values.for_each(|value| self.uint(value));
    }

    fn head(&mut self, len: usize, short: u8, middle: u8, long: u8) {
        match len {
            0..=15 => self.0.push(short | len as u8),
            16..=0xffff => self.tagged(middle, &(len as u16).to_be_bytes()),
            _ => self.tagged(long, &(len as u32).to_be_bytes()),
        }
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn numbers_take_the_shortest_form_at_each_limit() {
        let bytes = |value| written(|it| it.uint(value));
        assert_eq!(bytes(0), [0]);
        assert_eq!(bytes(0x7f), [0x7f]);
        assert_eq!(bytes(0x80), [0xcc, 0x80]);
        assert_eq!(bytes(0xff), [0xcc, 0xff]);
        assert_eq!(bytes(0x100), [0xcd, 1, 0]);
        assert_eq!(bytes(0xffff), [0xcd, 0xff, 0xff]);
        assert_eq!(bytes(0x1_0000), [0xce, 0, 1, 0, 0]);
        assert_eq!(bytes(u32::MAX.into()), [0xce, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(1 << 32), [0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(bytes(u64::MAX), [0xcf, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn lengths_take_the_shortest_form_at_each_limit() {
        assert_eq!(written(|it| it.array(15)), [0x9f]);
        assert_eq!(written(|it| it.array(16)), [0xdc, 0, 16]);
        assert_eq!(written(|it| it.array(0x1_0000)), [0xdd, 0, 1, 0, 0]);
        assert_eq!(written(|it| it.map(15)), [0x8f]);
        assert_eq!(written(|it| it.map(16)), [0xde, 0, 16]);
        assert_eq!(written(|it| it.text("ab")), [0xa2, b'a', b'b']);
        let head = |len: usize| written(|it| it.text(&"x".repeat(len)))[..3].to_vec();
        assert_eq!(head(31), [0xbf, b'x', b'x']);
        assert_eq!(head(32), [0xd9, 32, b'x']);
        assert_eq!(head(0x100), [0xda, 1, 0]);
        assert_eq!(head(0x1_0000), [0xdb, 0, 1]);
        assert_eq!(written(|it| it.float(1.5)), [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(Writer::nil), [0xc0]);
    }
}
