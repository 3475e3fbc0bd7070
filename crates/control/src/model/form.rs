//! The form of stored data: what a volume of a protected pool is turned into before it is kept.
//!
//! A form is chosen when a place for the volume is made, and kept with that place: what is there can be read in that
//! form only. A clone has the form of what it was made of. A volume that moves gets a new place, which may have another.

use super::{Layout, Pool, Volume};
use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What data goes through on its way to a protected pool, and back again. By default nothing: it is kept as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Form {}

/// The form that a volume is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FormSpec {}

static PLAIN: Form = Form {};

impl FormSpec {
    /// Whether nothing is asked for.
    pub fn is_plain(&self) -> bool {
        *self == FormSpec::default()
    }
}

impl Form {
    /// Whether data is kept as it is.
    pub fn is_plain(&self) -> bool {
        *self == PLAIN
    }

    /// Bytes of address space that the stored volume needs, of a volume in which hosts see `size` bytes.
    pub fn stored_len(&self, size: u64) -> u64 {
        size
    }

    /// Bytes that hosts see of a stored volume of `stored` bytes; the reverse of [`stored_len`](Form::stored_len).
    pub fn seen_len(&self, stored: u64) -> u64 {
        stored
    }

    /// The form of a new place that a volume of this form moves to: the same, with nothing in it that belongs to the
    /// old place only.
    pub fn renewed(&self) -> Form {
        self.clone()
    }

    /// What is asked for, in a pool that can give it.
    pub(super) fn wanted(spec: &FormSpec, pool: &Pool, volume: &str) -> Result<Form> {
        if !spec.is_plain() && pool.protection.is_none() {
            return Err(Error::new(
                Code::Unsupported,
                format!("volume `{volume}` cannot be kept in that form"),
            )
            .because(format!("pool `{}` is a plain pool, which keeps data as it is", pool.name))
            .hint("name a pool that was made with --raid"));
        }
        Ok(Form {})
    }
}

impl Layout {
    /// The form in which a volume is kept there.
    pub fn form(&self) -> &Form {
        match self {
            Layout::Store { form, .. } => form,
            _ => &PLAIN,
        }
    }

    /// The same place with another form, if it can have one.
    pub(super) fn with_form(mut self, new: Form) -> Layout {
        if let Layout::Store { form, .. } = &mut self {
            *form = new;
        }
        self
    }
}

impl Volume {
    /// The form in which it is kept where it is.
    pub fn form(&self) -> &Form {
        self.layout.form()
    }
}
