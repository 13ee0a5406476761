//! How drivers read numbers from their input, and how seeds write them.

use arbitrary::Unstructured;

/// Bytes from here on stand for numbers that one byte cannot hold.
const ESCAPES: u8 = 250;

/// The next number: small ones take one byte; wide ones and those at the end of their range, an escape.
pub fn number(input: &mut Unstructured<'_>) -> u64 {
    match byte(input) {
        250 => input.arbitrary::<u16>().unwrap_or_default().into(),
        251 => input.arbitrary::<u32>().unwrap_or_default().into(),
        252 => input.arbitrary().unwrap_or_default(),
        253 => u32::MAX.into(),
        254 => u64::MAX,
        255 => u64::MAX - 1,
        small => small.into(),
    }
}

/// The same in 32 bits: what does not fit is the largest.
pub fn number_32(input: &mut Unstructured<'_>) -> u32 {
    u32::try_from(number(input)).unwrap_or(u32::MAX)
}

/// The next byte, 0 behind the end.
pub fn byte(input: &mut Unstructured<'_>) -> u8 {
    input.arbitrary().unwrap_or_default()
}

/// At most `count` bytes.
pub fn bytes<'a>(input: &mut Unstructured<'a>, count: usize) -> &'a [u8] {
    input.bytes(count.min(input.len())).unwrap_or_default()
}

/// Writes a number as [`number`] reads it.
pub fn put(program: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(small) if small < ESCAPES => program.push(small),
        _ => {
            program.push(252);
            program.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Writes several numbers.
pub fn put_all(program: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        put(program, *number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        let numbers = [0, 1, 249, 250, 65_536, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut program = Vec::new();
        put_all(&mut program, &numbers);
        let mut input = Unstructured::new(&program);
        for expected in numbers {
            assert_eq!(number(&mut input), expected);
        }
        assert_eq!((input.len(), number(&mut input)), (0, 0), "behind the end everything is 0");
    }
}
