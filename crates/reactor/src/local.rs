//! What a reactor keeps, so that work sent by other reactors finds it: one value of a type, or many by number.

use crate::executor::with;
use std::any::TypeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Keeps `value` with the present reactor, in place of another of its type, so that work sent by other
/// reactors finds it.
pub fn set_local<T: 'static>(value: Rc<T>) {
    let old = with(|i| {
        let mut all = i.locals.borrow_mut();
        let key = TypeId::of::<T>();
        match all.iter_mut().find(|(k, _)| *k == key) {
            Some(slot) => Some(std::mem::replace(&mut slot.1, value)),
            None => {
                all.push((key, value));
                None
            }
        }
    });
    drop(old);
}

/// What [`set_local`] kept, if anything.
pub fn get_local<T: 'static>() -> Option<Rc<T>> {
    let found = with(|i| {
        let all = i.locals.borrow();
        all.iter().find(|(k, _)| *k == TypeId::of::<T>()).map(|(_, v)| v.clone())
    });
    found.and_then(|v| v.downcast().ok())
}

/// What the present reactor keeps of this type; its default from now on, if it was nothing.
pub fn local_or_default<T: Default + 'static>() -> Rc<T> {
    get_local().unwrap_or_else(|| {
        let new = Rc::new(T::default());
        set_local(new.clone());
        new
    })
}

/// The present reactor's parts of things that several reactors share, by the number of the thing.
struct Parts<T>(RefCell<BTreeMap<u64, Rc<T>>>);

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Parts(RefCell::default())
    }
}

/// Keeps the present reactor's part of thing `number`, in place of what it kept as that.
pub fn set_part<T: 'static>(number: u64, part: Rc<T>) {
    let old = local_or_default::<Parts<T>>().0.borrow_mut().insert(number, part);
    drop(old);
}

/// The present reactor's part of thing `number`, if it has one.
pub fn get_part<T: 'static>(number: u64) -> Option<Rc<T>> {
    get_local::<Parts<T>>()?.0.borrow().get(&number).cloned()
}

/// Keeps the present reactor's part of thing `number` no longer, and gives it back.
pub fn remove_part<T: 'static>(number: u64) -> Option<Rc<T>> {
    get_local::<Parts<T>>()?.0.borrow_mut().remove(&number)
}
