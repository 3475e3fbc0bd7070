-- TPC-H's eight tables (clause 1.4), filled as clause 4.2.3 says, by chance that is the same each time: a hash of a row's key and of
-- what is wanted. Sizes come from table `size`. Each table is made and filled in one transaction, so that it is not in the log as well.

-- A number from `a` to `b`.
create function chance(key bigint, what int, a int, b int) returns int immutable language sql as $$
  select a + ((hashint8extended(key, what) & 9223372036854775807) % (b - a + 1))::int $$;
create function one_of(key bigint, what int, words text[]) returns text immutable language sql as $$
  select words[chance(key, what, 1, cardinality(words))] $$;
-- Text of about `n` letters that means nothing.
create function remark(key bigint, what int, n int) returns text immutable language sql as $$
  select left(one_of(key, what, array['furiously','carefully','quickly','slyly','blithely','ironically','finally','evenly'])
    || ' ' || one_of(key, what + 1, array['special','pending','regular','express','bold','silent','final','unusual'])
    || ' ' || one_of(key, what + 2, array['packages','requests','accounts','deposits','foxes','ideas','theodolites','pinto beans'])
    || ' ' || one_of(key, what + 3, array['sleep','wake','haggle','nag','cajole','boost','detect','integrate'])
    || ' among the ' || md5(key::text || what), n) $$;
create function phone(key bigint, nation int) returns text immutable language sql as $$
  select (nation + 10)::text || '-' || chance(key, 31, 100, 999) || '-' || chance(key, 32, 100, 999) || '-' || chance(key, 33, 1000, 9999) $$;
-- Number `i` of four suppliers of a part.
create function supplier_of(part int, i int, suppliers int) returns int immutable language sql as $$
  select (part + i * (suppliers / 4 + (part - 1) / suppliers)) % suppliers + 1 $$;
create function retail_price(part int) returns numeric immutable language sql as $$
  select (90000 + (part / 10) % 20001 + 100 * (part % 1000)) / 100.0 $$;

begin;
create table region (r_regionkey int primary key, r_name char(25), r_comment varchar(152));
insert into region select i - 1, (array['AFRICA','AMERICA','ASIA','EUROPE','MIDDLE EAST'])[i], remark(i, 40, 100) from generate_series(1, 5) i;
create table nation (n_nationkey int primary key, n_name char(25), n_regionkey int, n_comment varchar(152));
insert into nation select n - 1, name, region, remark(n, 44, 100) from unnest(
  array['ALGERIA','ARGENTINA','BRAZIL','CANADA','EGYPT','ETHIOPIA','FRANCE','GERMANY','INDIA','INDONESIA','IRAN','IRAQ','JAPAN','JORDAN','KENYA',
    'MOROCCO','MOZAMBIQUE','PERU','CHINA','ROMANIA','SAUDI ARABIA','VIETNAM','RUSSIA','UNITED KINGDOM','UNITED STATES'],
  array[0,1,1,1,4,0,3,3,2,2,4,4,2,4,0,0,0,1,2,3,4,2,3,3,1]) with ordinality as t(name, region, n);
create table supplier (s_suppkey int primary key, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15),
  s_acctbal numeric(15,2), s_comment varchar(101));
-- Five of 10 000 are complained about, five recommended.
insert into supplier select s, 'Supplier#' || lpad(s::text, 9, '0'), md5(s::text), n, phone(s, n), chance(s, 51, -99999, 999999) / 100.0,
    case when s % 2000 = 7 then 'Customer of us has Complaints' when s % 2000 = 11 then 'Customer of us Recommends' else remark(s, 52, 80) end
  from size, generate_series(1, suppliers) s, lateral (select chance(s, 50, 0, 24) as n) t;
commit;

begin;
create table part (p_partkey int primary key, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), p_size int,
  p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23));
insert into part select p, (select string_agg(one_of(p, 60 + i, string_to_array(
    'almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished chartreuse chiffon chocolate coral '
    'cornflower cornsilk cream cyan dark deep dim dodger drab firebrick floral forest frosted gainsboro ghost goldenrod green grey honeydew '
    'hot indian ivory khaki lace lavender lawn lemon light lime linen magenta maroon medium metallic midnight mint misty moccasin navajo '
    'navy olive orange orchid pale papaya peach peru pink plum powder puff purple red rose rosy royal saddle salmon sandy seashell sienna '
    'sky slate smoke snow spring steel tan thistle tomato turquoise violet wheat white yellow', ' ')), ' ' order by i)
      from generate_series(1, 5) i),
    'Manufacturer#' || m, 'Brand#' || m || chance(p, 67, 1, 5),
    one_of(p, 68, array['STANDARD','SMALL','MEDIUM','LARGE','ECONOMY','PROMO']) || ' '
      || one_of(p, 69, array['ANODIZED','BURNISHED','PLATED','POLISHED','BRUSHED']) || ' '
      || one_of(p, 70, array['TIN','NICKEL','BRASS','STEEL','COPPER']),
    chance(p, 71, 1, 50),
    one_of(p, 72, array['SM','LG','MED','JUMBO','WRAP']) || ' ' || one_of(p, 73, array['CASE','BOX','BAG','JAR','PKG','PACK','CAN','DRUM']),
    retail_price(p), remark(p, 74, 14)
  from size, generate_series(1, parts) p, lateral (select chance(p, 66, 1, 5) as m) t;
create table partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2), ps_comment varchar(199),
  primary key (ps_partkey, ps_suppkey));
insert into partsupp select p, supplier_of(p, i, suppliers), chance(p * 4::bigint + i, 80, 1, 9999), chance(p * 4::bigint + i, 81, 100, 100000) / 100.0,
    rpad(remark(p * 4::bigint + i, 82, 80), 124, '.')
  from size, generate_series(1, parts) p, generate_series(0, 3) i;
commit;

begin;
create table customer (c_custkey int primary key, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15),
  c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117));
insert into customer select c, 'Customer#' || lpad(c::text, 9, '0'), md5(c::text), n, phone(c, n), chance(c, 91, -99999, 999999) / 100.0,
    one_of(c, 92, array['AUTOMOBILE','BUILDING','FURNITURE','MACHINERY','HOUSEHOLD']), remark(c, 93, 73)
  from size, generate_series(1, customers) c, lateral (select chance(c, 90, 0, 24) as n) t;
commit;

-- Orders number `first` to `last`: of 32 keys in a row only eight are used at first, others later.
create function order_key(i int, later int) returns int immutable language sql as $$ select ((i >> 3) << 5) | (i & 7) | (later << 3) $$;
-- One customer of three has none.
create function customer_of(o int, customers int) returns int immutable language sql as $$
  select c - (c % 3 = 0)::int from (select chance(o, 100, 1, customers) as c) t $$;
create function order_date(o int) returns date immutable language sql as $$ select date '1992-01-01' + chance(o, 101, 0, 2405) $$;

begin;
create table lineitem (l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2), l_extendedprice numeric(15,2),
  l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1), l_linestatus char(1), l_shipdate date, l_commitdate date,
  l_receiptdate date, l_shipinstruct char(25), l_shipmode char(10), l_comment varchar(44));
create function lines(first int, last int, later int) returns setof lineitem stable language sql as $$
  select o, p, supplier_of(p, chance(k, 111, 0, 3), suppliers), l, quantity, quantity * retail_price(p), chance(k, 113, 0, 10) / 100.0,
    chance(k, 114, 0, 8) / 100.0,
    case when received <= date '1995-06-17' then one_of(k, 115, array['R','A']) else 'N' end,
    case when shipped > date '1995-06-17' then 'O' else 'F' end, shipped, order_date(o) + chance(k, 116, 30, 90), received,
    one_of(k, 117, array['DELIVER IN PERSON','COLLECT COD','NONE','TAKE BACK RETURN']),
    one_of(k, 118, array['REG AIR','AIR','RAIL','SHIP','TRUCK','MAIL','FOB']), remark(k, 119, 27)
  from size, generate_series(first, last) i, lateral (select order_key(i, later) as o offset 0) a,
    generate_series(1, chance(o, 102, 1, 7)) l, lateral (select o * 8::bigint + l as k offset 0) b,
    lateral (select chance(k, 110, 1, parts) as p, chance(k, 112, 1, 50) as quantity, order_date(o) + chance(k, 120, 1, 121) as shipped
      offset 0) c,
    lateral (select shipped + chance(k, 121, 1, 30) as received offset 0) d $$;
insert into lineitem select lines.* from size, lines(1, orders, 0);
commit;

begin;
create table orders (o_orderkey int, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2), o_orderdate date, o_orderpriority char(15),
  o_clerk char(15), o_shippriority int, o_comment varchar(79));
-- Of keys whose lines are there.
create function heads(first int, last int) returns setof orders stable language sql as $$
  select l_orderkey, customer_of(l_orderkey, customers), status, price, order_date(l_orderkey),
    one_of(l_orderkey, 130, array['1-URGENT','2-HIGH','3-MEDIUM','4-NOT SPECIFIED','5-LOW']),
    'Clerk#' || lpad(chance(l_orderkey, 131, 1, greatest(suppliers / 10, 1))::text, 9, '0'), 0, remark(l_orderkey, 132, 49)
  from size, (
    select l_orderkey, case min(l_linestatus) || max(l_linestatus) when 'FF' then 'F' when 'OO' then 'O' else 'P' end as status,
      sum(l_extendedprice * (1 + l_tax) * (1 - l_discount))::numeric(15,2) as price
    from lineitem where l_orderkey between first and last group by l_orderkey order by l_orderkey offset 0) t $$;
insert into orders select heads.* from size, heads(0, order_key(orders, 3));
commit;

set maintenance_work_mem = '128MB';
alter table lineitem add primary key (l_orderkey, l_linenumber);
alter table orders add primary key (o_orderkey);

-- Clause 2.5: the refresh functions, on a thousandth of the orders. What the first brought is what the second takes.
create function refresh_insert(batch int) returns void language sql as $$
  insert into lineitem select lines.* from size, lines(batch * orders / 1000 + 1, (batch + 1) * orders / 1000, 1);
  insert into orders select heads.* from size, generate_series(batch * orders / 1000 + 1, (batch + 1) * orders / 1000) i,
    heads(order_key(i, 1), order_key(i, 1)) $$;
create function refresh_delete(batch int) returns void language sql as $$
  delete from orders using size, generate_series(batch * orders / 1000 + 1, (batch + 1) * orders / 1000) i where o_orderkey = order_key(i, 1);
  delete from lineitem using size, generate_series(batch * orders / 1000 + 1, (batch + 1) * orders / 1000) i where l_orderkey = order_key(i, 1) $$;
vacuum (freeze, analyze);
checkpoint;
