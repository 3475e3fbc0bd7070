\set w random(1, :warehouses)
\set hundredth random(1, 100)
begin;
select new_order(:w, :hundredth = 1) as fine \gset
\if :fine
commit;
\else
rollback;
\endif
