\set w random(1, :warehouses)
select order_status(:w);
