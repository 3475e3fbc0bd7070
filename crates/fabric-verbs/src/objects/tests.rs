use super::*;

#[test]
fn a_batch_becomes_a_chain_in_order() {
    let mut b = SendBatch::default();
    for i in 0..3u64 {
        let mut r = Request { wr_id: i, remote_addr: 100 + i, ..Request::default() };
        if i > 0 {
            r.sges[0] = b.keep(&[i as u8; 5], Some(&Slice::copy_of(&[9; 3]).sub(0, 3)));
            r.inline_head = true;
            r.pieces = 1;
        }
        b.push(r);
    }
    let mut p = b.link();
    for i in 0..3u64 {
        // SAFETY: a link of the chain, inside the batch.
        let wr = unsafe { &*p };
        assert_eq!((wr.wr_id, wr.remote_addr, wr.num_sge), (i, 100 + i, i32::from(i > 0)));
        if i > 0 {
            // SAFETY: the request's first piece, whose bytes are the batch's.
            let bytes = unsafe {
                let sge = &*wr.sg_list;
                std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
            };
            assert_eq!(bytes, [[i as u8; 5].as_slice(), &[9; 3]].concat());
        }
        p = wr.next;
    }
    assert!(p.is_null());
    b.clear();
    assert!(b.is_empty() && b.link().is_null());
    let mut r = RecvBatch::default();
    r.push(7, ibv_sge { addr: 1, length: 2, lkey: 3 });
    r.push(8, ibv_sge::default());
    // SAFETY: as above.
    let (first, second) = unsafe { (&*r.link(), &*(*r.link()).next) };
    assert_eq!((first.wr_id, first.num_sge), (7, 1));
    assert_eq!((second.wr_id, second.num_sge, second.next.is_null()), (8, 0, true));
}
