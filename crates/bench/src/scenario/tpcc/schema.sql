-- TPC-C's nine tables. Rows are about as wide as the specification's.
create table warehouse (w_id int primary key, w_name text, w_tax numeric(4,4), w_ytd numeric(12,2), w_fill text)
  with (fillfactor = 50);
create table district (d_w_id int, d_id int, d_name text, d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id int,
  d_fill text, primary key (d_w_id, d_id)) with (fillfactor = 50);
create table customer (c_w_id int, c_d_id int, c_id int, c_first text, c_last text, c_credit char(2),
  c_discount numeric(4,4), c_balance numeric(12,2), c_ytd_payment numeric(12,2), c_payment_cnt int, c_delivery_cnt int,
  c_data text, primary key (c_w_id, c_d_id, c_id));
create table history (h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz,
  h_amount numeric(6,2), h_data text);
create table orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int,
  o_all_local int, primary key (o_w_id, o_d_id, o_id));
create table new_order (no_w_id int, no_d_id int, no_o_id int, primary key (no_w_id, no_d_id, no_o_id));
create table order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int,
  ol_delivery_d timestamptz, ol_quantity int, ol_amount numeric(6,2), ol_dist_info char(24),
  primary key (ol_w_id, ol_d_id, ol_o_id, ol_number));
create table item (i_id int primary key, i_im_id int, i_name text, i_price numeric(5,2), i_data text);
create table stock (s_w_id int, s_i_id int, s_quantity int, s_dist char(24), s_ytd int, s_order_cnt int, s_remote_cnt int,
  s_data text, primary key (s_w_id, s_i_id));

-- Clause 4.3.2.3: last names of three syllables.
create function last_name(n int) returns text immutable language sql as $$
  select s[n / 100 % 10 + 1] || s[n / 10 % 10 + 1] || s[n % 10 + 1]
  from (values (array['BAR','OUGHT','ABLE','PRI','PRES','ESE','ANTI','CALLY','ATION','EING'])) as t(s) $$;
create function between_(a int, b int) returns int volatile language sql as $$
  select a + floor(random() * (b - a + 1))::int $$;
-- Clause 2.1.6: some are taken more often than others.
create function nurand(k int, a int, b int) returns int volatile language sql as $$
  select ((between_(0, k) | between_(a, b)) + 42) % (b - a + 1) + a $$;
create table size (warehouses int, items int, customers int);
