\set w random(1, :warehouses)
select delivery(:w);
