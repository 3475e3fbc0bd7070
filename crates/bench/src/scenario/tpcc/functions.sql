-- Clause 2.4. Gives 0 where an item does not exist, which is when the caller rolls back.
create function new_order(w int, bad boolean) returns int language plpgsql as $$
declare
  n size%rowtype; d int; c int; o int; lines int := between_(5, 15); ids int[]; wares int[]; qty int; price numeric; local_ int := 1;
  total numeric := 0;
begin
  select * into n from size;
  d := between_(1, 10);
  c := nurand(1023, 1, n.customers);
  -- In order of the items, so that two of these never wait for each other in a circle.
  select array_agg(i order by i), array_agg(s order by i) into ids, wares from (
    select nurand(8191, 1, n.items) as i, case when n.warehouses > 1 and random() < 0.01 then between_(1, n.warehouses) else w end as s
    from generate_series(1, lines)) as t;
  if exists (select from unnest(wares) s where s <> w) then local_ := 0; end if;
  perform w_tax from warehouse where w_id = w;
  update district set d_next_o_id = d_next_o_id + 1 where d_w_id = w and d_id = d returning d_next_o_id - 1 into o;
  perform c_discount, c_last, c_credit from customer where c_w_id = w and c_d_id = d and c_id = c;
  insert into orders values (w, d, o, c, now(), null, lines, local_);
  insert into new_order values (w, d, o);
  for l in 1 .. lines loop
    if bad and l = lines then ids[l] := 0; end if;
    select i_price into price from item where i_id = ids[l];
    if not found then return 0; end if;
    qty := between_(1, 10);
    update stock set s_quantity = case when s_quantity >= qty + 10 then s_quantity - qty else s_quantity - qty + 91 end,
      s_ytd = s_ytd + qty, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (wares[l] <> w)::int
      where s_w_id = wares[l] and s_i_id = ids[l];
    insert into order_line values (w, d, o, l, ids[l], wares[l], null, qty, qty * price, repeat('i', 24));
    total := total + qty * price;
  end loop;
  return 1;
end $$;

-- Clause 2.5.1.2: three of five by last name, the one in the middle.
create function a_customer(w int, d int) returns int language plpgsql as $$
declare n size%rowtype; c int; ids int[];
begin
  select * into n from size;
  if random() < 0.6 then
    select array_agg(c_id order by c_first) into ids from customer
      where c_w_id = w and c_d_id = d and c_last = last_name(nurand(255, 0, least(999, n.customers - 1)));
    c := ids[(cardinality(ids) + 1) / 2];
  end if;
  return coalesce(c, nurand(1023, 1, n.customers));
end $$;

-- Clause 2.5.
create function payment(w int) returns int language plpgsql as $$
declare d int := between_(1, 10); cw int := w; cd int; c int; amount numeric := between_(100, 500000) / 100.0; n int;
begin
  select warehouses into n from size;
  cd := d;
  if n > 1 and random() < 0.15 then cw := between_(1, n); cd := between_(1, 10); end if;
  c := a_customer(cw, cd);
  update warehouse set w_ytd = w_ytd + amount where w_id = w;
  update district set d_ytd = d_ytd + amount where d_w_id = w and d_id = d;
  update customer set c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount, c_payment_cnt = c_payment_cnt + 1,
    c_data = case when c_credit = 'BC' then left(c || ' ' || d || ' ' || w || ' ' || amount || c_data, 500) else c_data end
    where c_w_id = cw and c_d_id = cd and c_id = c;
  insert into history values (c, cd, cw, d, w, now(), amount, 'payment of a customer');
  return 1;
end $$;

-- Clause 2.6.
create function order_status(w int) returns int language plpgsql as $$
declare d int := between_(1, 10); c int; o int;
begin
  c := a_customer(w, d);
  perform c_balance, c_first, c_last from customer where c_w_id = w and c_d_id = d and c_id = c;
  select o_id into o from orders where o_w_id = w and o_d_id = d and o_c_id = c order by o_id desc limit 1;
  perform ol_i_id, ol_quantity, ol_amount, ol_delivery_d from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o;
  return 1;
end $$;

-- Clause 2.7, at once and not put off.
create function delivery(w int) returns int language plpgsql as $$
declare o int; c int; total numeric;
begin
  for d in 1 .. 10 loop
    delete from new_order where no_w_id = w and no_d_id = d and no_o_id =
      (select no_o_id from new_order where no_w_id = w and no_d_id = d order by no_o_id limit 1 for update skip locked)
      returning no_o_id into o;
    continue when o is null;
    update orders set o_carrier_id = between_(1, 10) where o_w_id = w and o_d_id = d and o_id = o returning o_c_id into c;
    update order_line set ol_delivery_d = now() where ol_w_id = w and ol_d_id = d and ol_o_id = o;
    select sum(ol_amount) into total from order_line where ol_w_id = w and ol_d_id = d and ol_o_id = o;
    update customer set c_balance = c_balance + coalesce(total, 0), c_delivery_cnt = c_delivery_cnt + 1
      where c_w_id = w and c_d_id = d and c_id = c;
  end loop;
  return 1;
end $$;

-- Clause 2.8.
create function stock_level(w int) returns int language plpgsql as $$
declare d int := between_(1, 10); o int; n int;
begin
  select d_next_o_id into o from district where d_w_id = w and d_id = d;
  select count(distinct s_i_id) into n from order_line join stock on s_w_id = w and s_i_id = ol_i_id
    where ol_w_id = w and ol_d_id = d and ol_o_id >= o - 20 and ol_o_id < o and s_quantity < between_(10, 20);
  return n;
end $$;
