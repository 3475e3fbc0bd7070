//! A register as hexadecimal digits of its own format: for JSON, and for lines that programs exchange.

use core::fmt::Write;
use weir_proto_cluster::Register;
use weir_proto_cluster::register::RegisterError;

/// As digits, two a byte.
pub fn of(register: &Register) -> String {
    let bytes = register.encode();
    let mut text = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{b:02x}");
    }
    text
}

/// From digits.
///
/// # Errors
/// They are none, or not those of a register that this program must act on.
pub fn read(text: &str) -> Result<Register, RegisterError> {
    Register::decode(&bytes(text).ok_or(RegisterError::NotOne)?)
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|p| Some((digit(*p.first()?)? << 4) | digit(*p.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto_cluster::{Life, Node, Writer};

    #[test]
    fn there_and_back() {
        let [a, b] = [3, 8].map(|n| Node::new(n).unwrap());
        let register = Register::made(7 << 90, [a, b], Writer { node: b, life: Life(9), n: 4 });
        assert_eq!(read(&of(&register)), Ok(register));
        assert_eq!(read(&of(&register)[2..]), Err(RegisterError::NotOne));
        assert_eq!(bytes("0aFf"), Some(vec![10, 255]));
        for wrong in ["0", "0g", "é"] {
            assert_eq!(read(wrong), Err(RegisterError::NotOne));
        }
    }
}
