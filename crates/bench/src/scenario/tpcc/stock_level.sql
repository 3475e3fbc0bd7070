\set w random(1, :warehouses)
select stock_level(:w);
