use super::*;

fn target() -> AddTarget {
    AddTarget::new(PortId::new(0x1122, 0xaabb_ccdd_eeff_0011), "10.1.2.3:5555".parse().unwrap())
}

#[test]
fn the_exact_line() {
    let mut t = target();
    assert_eq!(
        t.line().unwrap(),
        "id_ext=0000000000001122,ioc_guid=aabbccddeeff0011,dest=10.1.2.3:5555"
    );
    t.dest = "[fd00::5]:5555".parse().unwrap();
    t.src = Some("fd00::6".parse().unwrap());
    t.initiator_ext = Some(7);
    t.max_cmd_per_lun = Some(32);
    t.queue_size = Some(64);
    t.cmd_sg_entries = Some(255);
    t.allow_ext_sg = Some(1);
    t.sg_tablesize = Some(2048);
    t.max_sect = Some(8192);
    t.tl_retry_count = Some(3);
    t.ch_count = Some(2);
    let line = "id_ext=0000000000001122,ioc_guid=aabbccddeeff0011,dest=[fd00::5]:5555,src=[fd00::6],\
                initiator_ext=0000000000000007,max_cmd_per_lun=32,queue_size=64,cmd_sg_entries=255,\
                allow_ext_sg=1,sg_tablesize=2048,max_sect=8192,tl_retry_count=3,ch_count=2";
    assert_eq!(t.line().unwrap(), line);
    assert_eq!(line.parse(), Ok(t));
    assert_eq!(
        target().command("siw0", 1).unwrap(),
        "echo id_ext=0000000000001122,ioc_guid=aabbccddeeff0011,dest=10.1.2.3:5555 \
         > /sys/class/infiniband_srp/srp-siw0-1/add_target"
    );
    for device in ["", "a b", "x;rm", "../x/"] {
        assert!(target().command(device, 1).is_err(), "{device}");
    }
}

#[test]
fn parses_what_hosts_take() {
    let t: AddTarget =
        "dest=10.1.2.3:5555,,ioc_guid=0xAABBCCDDEEFF0011,id_ext=1122\n".parse().unwrap();
    assert_eq!(t, target());
    assert_eq!(t.target(), PortId::new(0x1122, 0xaabb_ccdd_eeff_0011));
}

#[test]
fn refuses_the_rest_and_says_why() {
    let base = "id_ext=1,ioc_guid=2,dest=10.0.0.1:1";
    assert!(base.parse::<AddTarget>().is_ok());
    for (text, error) in [
        ("", "option id_ext= is missing"),
        ("id_ext=1", "option ioc_guid= is missing"),
        ("id_ext=1,ioc_guid=2", "option dest= is missing"),
        ("id_ext=1,id_ext=1", "option id_ext= is given twice"),
        ("queue_size=1,queue_size=2", "option queue_size= is given twice"),
        ("nonsense", "\"nonsense\" is no option of add_target"),
        ("color=red", "\"color=red\" is no option of add_target"),
        ("dgid=fe80", "option dgid= belongs to the IB connection manager; give dest= instead"),
        ("pkey=ffff", "option pkey= belongs to the IB connection manager; give dest= instead"),
        (
            "service_id=1",
            "option service_id= belongs to the IB connection manager; give dest= instead",
        ),
        ("id_ext=", "id_ext=: wanted 1 to 16 hexadecimal digits"),
        ("id_ext=00000000000000001", "id_ext=00000000000000001: wanted 1 to 16 hexadecimal digits"),
        ("id_ext=-1", "id_ext=-1: wanted 1 to 16 hexadecimal digits"),
        ("cmd_sg_entries=", "cmd_sg_entries=: wanted a number from 1 to 255"),
        ("src=fd00::1", "src=fd00::1: wanted IPV4 or [IPV6] of the same family as dest"),
    ] {
        assert_eq!(text.parse::<AddTarget>().unwrap_err().to_string(), error, "{text}");
    }
    for option in [
        "cmd_sg_entries=0",
        "cmd_sg_entries=256",
        "sg_tablesize=0",
        "sg_tablesize=2049",
        "queue_size=0",
        "queue_size=2147483648",
        "max_cmd_per_lun=0",
        "allow_ext_sg=2",
        "max_sect=0",
        "tl_retry_count=1",
        "tl_retry_count=8",
        "ch_count=0",
        "src=[fd00::1]",
    ] {
        let text = format!("{base},{option}");
        assert!(matches!(text.parse::<AddTarget>(), Err(AddTargetError::Value { .. })), "{option}");
    }
    for dest in ["10.0.0.1:0", "10.0.0.1", "0.0.0.0:5", "[::]:5", "fd00::1:5", "224.0.0.1:5", "h:1"]
    {
        let text = format!("id_ext=1,ioc_guid=2,dest={dest}");
        assert!(text.parse::<AddTarget>().is_err(), "{dest}");
    }
}
