\set w random(1, :warehouses)
select payment(:w);
