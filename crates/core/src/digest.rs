//! Digests of keys and arguments, and the lock tag of a key.
//!
//! What is derived here is stored, or agreed upon with backends that still run an older library: none of it ever changes.
//! The tests pin vectors that were computed independently.

use sha2::{Digest, Sha256};

use crate::canonical::{Document, Sink};
use crate::ignore::Ignore;

/// The length of a key's digest.
pub const KEY_DIGEST_BYTES: usize = 16;

/// The length of a hash of arguments: the version, then SHA-256.
pub const ARGS_HASH_BYTES: usize = 33;

/// The version of the canonical form, the first byte of every hash of arguments.
pub const CANONICAL_VERSION: u8 = 0x01;

/// The digest of a key in its scope: the first 16 bytes of SHA-256 over the scope's name and the key, each after its
/// length in bytes as a big-endian `u64`. Frozen for ever: it is the primary key of every record.
pub fn key_digest(scope: &str, key: &str) -> [u8; KEY_DIGEST_BYTES] {
    texts_digest(&[scope, key])
}

/// The digest of an ordering key of one destination: its lock's tag.
pub fn order_digest(scope: &str, destination: &str, ordering_key: &str) -> [u8; KEY_DIGEST_BYTES] {
    texts_digest(&[scope, destination, ordering_key])
}

/// The digest of a run that was begun: its primary key and its lock's tag.
pub fn run_digest(run: &str) -> [u8; KEY_DIGEST_BYTES] {
    texts_digest(&[run])
}

/// The digest of a run as the predicate of a scope sees it.
pub fn scope_run_digest(scope: &str, run: &str) -> [u8; KEY_DIGEST_BYTES] {
    texts_digest(&[scope, run])
}

/// The digest of a destination: those who wait for its messages are woken by it.
pub fn destination_digest(destination: &str) -> [u8; KEY_DIGEST_BYTES] {
    texts_digest(&[destination])
}

/// The two halves of a key's lock tag: the first eight bytes of its digest as two big-endian numbers. Frozen for ever:
/// backends of different library versions must take the same lock for the same key.
pub fn lock_tag(digest: &[u8; KEY_DIGEST_BYTES]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// The hash of arguments: [`CANONICAL_VERSION`], then SHA-256 of the canonical form without what `ignore` leaves out.
pub fn args_hash(document: &Document<'_>, ignore: &Ignore) -> [u8; ARGS_HASH_BYTES] {
    let mut sink = HashSink(Sha256::new());
    document.write_canonical(ignore, &mut sink);
    let mut hash = [0; ARGS_HASH_BYTES];
    hash[0] = CANONICAL_VERSION;
    hash[1..].copy_from_slice(&sink.0.finalize());
    hash
}

/// The first 16 bytes of SHA-256 over the texts, each after its length in bytes as a big-endian `u64`.
pub(crate) fn texts_digest(texts: &[&str]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for text in texts {
        update_prefixed(&mut hash, text);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hash.finalize()[..16]);
    half
}

struct HashSink(Sha256);

impl Sink for HashSink {
    fn write(&mut self, text: &str) {
        self.0.update(text);
    }
}

fn update_prefixed(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::Builder;
    use crate::key::KEY_BYTES_MAX;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From Python: `hashlib.sha256(b''.join(len(t).to_bytes(8, 'big') + t for t in (scope, key))).digest()[:16]`.
    #[test]
    fn key_digest_and_lock_tag_are_frozen() {
        let longest = "k".repeat(KEY_BYTES_MAX);
        for (scope, key, digest, tag) in [
            (
                "default",
                "order-1",
                "a2f3c57957c95fca3b3cff4bc4935074",
                (0xa2f3_c579, 0x57c9_5fca),
            ),
            (
                "",
                "",
                "374708fff7719dd5979ec875d56cd228",
                (0x3747_08ff, 0xf771_9dd5),
            ),
            (
                "a",
                "bc",
                "3fafa1cf2f19a7c1129beb20cf0983f7",
                (0x3faf_a1cf, 0x2f19_a7c1),
            ),
            (
                "ab",
                "c",
                "601d5476e2ccfe2c87a2bba7a3226597",
                (0x601d_5476, 0xe2cc_fe2c),
            ),
            (
                "Zahlungen-ü",
                "😀/1",
                "cbad70d29b6cb0f3c6bdc68dcd6caf1f",
                (0xcbad_70d2, 0x9b6c_b0f3),
            ),
            (
                "default",
                &longest,
                "a604fc8dcd38455d2165c641a50edc35",
                (0xa604_fc8d, 0xcd38_455d),
            ),
        ] {
            assert_eq!(hex(&key_digest(scope, key)), digest, "{scope} {key}");
            assert_eq!(lock_tag(&key_digest(scope, key)), tag, "{scope} {key}");
        }
    }

    /// From Python: `'01' + hashlib.sha256(canonical text).hexdigest()`.
    #[test]
    fn args_hash_is_frozen() {
        let frozen = [
            "0144136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "0174234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b",
            "01115cab69722a19a033881b2eb19bf9217f188d81008fc035e5f12953ac4da12d",
            "01e8c7795f0c1c6e767ad68083c16e7278c6837ed90844851c1b9f364f48fd5c76",
        ];
        let builds: [fn(&mut Builder<'static>); 4] = [
            // {}
            |builder| {
                builder.begin_object();
                builder.end_object();
            },
            Builder::null,
            // [0,1e+21,4.5]
            |builder| {
                builder.begin_array();
                for number in ["-0", "1000000000000000000000", "4.50"] {
                    builder.number(number);
                }
                builder.end_array();
            },
            // {"amount":9007199254740993,"currency":"EUR"}
            |builder| {
                builder.begin_object();
                builder.member("currency");
                builder.string("EUR");
                builder.member("amount");
                builder.number("9007199254740993");
                builder.end_object();
            },
        ];
        for (build, hash) in builds.iter().zip(frozen) {
            let mut builder = Builder::new();
            build(&mut builder);
            let document = builder.finish().expect("a document");
            assert_eq!(hex(&args_hash(&document, &Ignore::none())), hash);
        }
    }

    #[test]
    fn args_hash_leaves_out_what_is_ignored() {
        let hash = |traced: bool, ignore: &Ignore| {
            let mut builder = Builder::new();
            builder.begin_object();
            builder.member("amount");
            builder.number("1");
            if traced {
                builder.member("trace");
                builder.string("t-1");
            }
            builder.end_object();
            args_hash(&builder.finish().expect("a document"), ignore)
        };
        let ignore = Ignore::parse(&["/trace"]).expect("a pointer");
        assert_eq!(hash(true, &ignore), hash(false, &Ignore::none()));
        assert_ne!(hash(true, &Ignore::none()), hash(false, &Ignore::none()));
    }
}
