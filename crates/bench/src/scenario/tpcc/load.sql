-- Sizes come from table `size`.
insert into item select i, between_(1, 10000), 'item ' || i, 1 + (i * 7919 % 9900) / 100.0, repeat('d', 26 + i % 25)
  from size, generate_series(1, items) i;
insert into warehouse select w, 'W' || w, random() * 0.2, 300 * customers * 0.1, repeat('f', 60) from size, generate_series(1, warehouses) w;
insert into district select w, d, 'D' || d, random() * 0.2, 30 * customers * 0.1, customers + 1, repeat('f', 60)
  from size, generate_series(1, warehouses) w, generate_series(1, 10) d;
update district set d_ytd = 10 * customers from size;
update warehouse set w_ytd = 100 * customers from size;
insert into customer select w, d, c, 'first ' || c, last_name(case when c <= 1000 then c - 1 else nurand(255, 0, 999) end),
    case when random() < 0.1 then 'BC' else 'GC' end, random() * 0.5, -10, 10, 1, 0, repeat('c', between_(300, 500))
  from size, generate_series(1, warehouses) w, generate_series(1, 10) d, generate_series(1, customers) c;
insert into history select c, d, w, d, w, now(), 10, 'history data' from size, generate_series(1, warehouses) w,
  generate_series(1, 10) d, generate_series(1, customers) c;
insert into stock select w, i, between_(10, 100), repeat('s', 24), 0, 0, 0, repeat('d', between_(176, 200))
  from size, generate_series(1, warehouses) w, generate_series(1, items) i;
-- The newest three of ten are not delivered.
insert into orders select w, d, o, (o * 7 + d) % customers + 1, now(), case when o <= customers * 0.7 then between_(1, 10) end,
    between_(5, 15), 1
  from size, generate_series(1, warehouses) w, generate_series(1, 10) d, generate_series(1, customers) o;
insert into new_order select o_w_id, o_d_id, o_id from orders where o_carrier_id is null;
insert into order_line select o_w_id, o_d_id, o_id, l, between_(1, items), o_w_id, case when o_carrier_id is not null then now() end,
    5, case when o_carrier_id is null then (between_(1, 999999) / 100.0)::numeric(8,2) % 1000 else 0 end, repeat('i', 24)
  from size, orders, generate_series(1, o_ol_cnt) l;
create index on customer (c_w_id, c_d_id, c_last, c_first);
create index on orders (o_w_id, o_d_id, o_c_id, o_id);
vacuum analyze;
checkpoint;
