-- The queries of TPC-H's clause 2.4 with the parameters that it gives for their validation. Each begins after a line with its name.
-- Averages and sums of all parts are joined to Q17 and Q20, where the specification asks for them part by part: tables are scanned
-- then, once, instead of looked up by an index.

-- Q1: pricing summary
select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)),
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
from lineitem where l_shipdate <= date '1998-12-01' - 90 group by 1, 2 order by 1, 2;

-- Q2: minimum cost supplier
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from part join partsupp on ps_partkey = p_partkey join supplier on s_suppkey = ps_suppkey join nation on n_nationkey = s_nationkey
  join region on r_regionkey = n_regionkey
where p_size = 15 and p_type like '%BRASS' and r_name = 'EUROPE' and ps_supplycost =
  (select min(ps_supplycost) from partsupp join supplier on s_suppkey = ps_suppkey join nation on n_nationkey = s_nationkey
     join region on r_regionkey = n_regionkey
   where ps_partkey = p_partkey and r_name = 'EUROPE')
order by s_acctbal desc, n_name, s_name, p_partkey limit 100;

-- Q3: shipping priority
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer join orders on o_custkey = c_custkey join lineitem on l_orderkey = o_orderkey
where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by 1, 3, 4 order by revenue desc, o_orderdate, l_orderkey limit 10;

-- Q4: order priority checking
select o_orderpriority, count(*) from orders
where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'
  and exists (select from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by 1 order by 1;

-- Q5: local supplier volume
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer join orders on o_custkey = c_custkey join lineitem on l_orderkey = o_orderkey
  join supplier on s_suppkey = l_suppkey and s_nationkey = c_nationkey join nation on n_nationkey = s_nationkey
  join region on r_regionkey = n_regionkey
where r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
group by 1 order by revenue desc;

-- Q6: forecasting revenue change
select sum(l_extendedprice * l_discount) from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' and l_discount between 0.05 and 0.07 and l_quantity < 24;

-- Q7: volume shipping
select n1.n_name, n2.n_name, extract(year from l_shipdate), sum(l_extendedprice * (1 - l_discount))
from supplier join lineitem on l_suppkey = s_suppkey join orders on o_orderkey = l_orderkey join customer on c_custkey = o_custkey
  join nation n1 on n1.n_nationkey = s_nationkey join nation n2 on n2.n_nationkey = c_nationkey
where (n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY' or n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE')
  and l_shipdate between date '1995-01-01' and date '1996-12-31'
group by 1, 2, 3 order by 1, 2, 3;

-- Q8: national market share
select extract(year from o_orderdate),
  sum(case when n2.n_name = 'BRAZIL' then l_extendedprice * (1 - l_discount) else 0 end) / sum(l_extendedprice * (1 - l_discount))
from part join lineitem on l_partkey = p_partkey join supplier on s_suppkey = l_suppkey join orders on o_orderkey = l_orderkey
  join customer on c_custkey = o_custkey join nation n1 on n1.n_nationkey = c_nationkey join region on r_regionkey = n1.n_regionkey
  join nation n2 on n2.n_nationkey = s_nationkey
where r_name = 'AMERICA' and p_type = 'ECONOMY ANODIZED STEEL' and o_orderdate between date '1995-01-01' and date '1996-12-31'
group by 1 order by 1;

-- Q9: product type profit
select n_name, extract(year from o_orderdate), sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity)
from part join lineitem on l_partkey = p_partkey join supplier on s_suppkey = l_suppkey
  join partsupp on ps_partkey = l_partkey and ps_suppkey = l_suppkey join orders on o_orderkey = l_orderkey
  join nation on n_nationkey = s_nationkey
where p_name like '%green%' group by 1, 2 order by 1, 2 desc;

-- Q10: returned items
select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name, c_address, c_phone, c_comment
from customer join orders on o_custkey = c_custkey join lineitem on l_orderkey = o_orderkey join nation on n_nationkey = c_nationkey
where o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
group by 1, 2, 4, 7, 5, 6, 8 order by revenue desc, c_custkey limit 20;

-- Q11: important stock
select ps_partkey, sum(ps_supplycost * ps_availqty) as value
from partsupp join supplier on s_suppkey = ps_suppkey join nation on n_nationkey = s_nationkey where n_name = 'GERMANY'
group by 1 having sum(ps_supplycost * ps_availqty) >
  (select sum(ps_supplycost * ps_availqty) * 0.0001 / (select suppliers / 10000.0 from size)
   from partsupp join supplier on s_suppkey = ps_suppkey join nation on n_nationkey = s_nationkey where n_name = 'GERMANY')
order by value desc, ps_partkey;

-- Q12: shipping modes and priorities
select l_shipmode, sum((o_orderpriority in ('1-URGENT', '2-HIGH'))::int), sum((o_orderpriority not in ('1-URGENT', '2-HIGH'))::int)
from orders join lineitem on l_orderkey = o_orderkey
where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
  and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
group by 1 order by 1;

-- Q13: customers by orders
select n, count(*) from
  (select c_custkey, count(o_orderkey) as n from customer left join orders on o_custkey = c_custkey and o_comment not like '%special%requests%'
   group by 1) t
group by 1 order by 2 desc, 1 desc;

-- Q14: effect of promotion
select 100 * sum(case when p_type like 'PROMO%' then l_extendedprice * (1 - l_discount) else 0 end) / sum(l_extendedprice * (1 - l_discount))
from lineitem join part on p_partkey = l_partkey where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01';

-- Q15: top supplier
with revenue as materialized (
  select l_suppkey as supplier, sum(l_extendedprice * (1 - l_discount)) as total from lineitem
  where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01' group by 1)
select s_suppkey, s_name, s_address, s_phone, total from supplier join revenue on supplier = s_suppkey
where total = (select max(total) from revenue) order by 1;

-- Q16: parts by suppliers
select p_brand, p_type, p_size, count(distinct ps_suppkey)
from partsupp join part on p_partkey = ps_partkey
where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%' and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
  and ps_suppkey not in (select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
group by 1, 2, 3 order by 4 desc, 1, 2, 3;

-- Q17: small quantities
select sum(l_extendedprice) / 7.0
from part join lineitem on l_partkey = p_partkey
  join (select l_partkey as part, 0.2 * avg(l_quantity) as little from lineitem group by 1) t on part = p_partkey
where p_brand = 'Brand#23' and p_container = 'MED BOX' and l_quantity < little;

-- Q18: large orders
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity)
from customer join orders on o_custkey = c_custkey join lineitem on l_orderkey = o_orderkey
where o_orderkey in (select l_orderkey from lineitem group by 1 having sum(l_quantity) > 300)
group by 1, 2, 3, 4, 5 order by o_totalprice desc, o_orderdate, o_orderkey limit 100;

-- Q19: discounted revenue
select sum(l_extendedprice * (1 - l_discount)) from lineitem join part on p_partkey = l_partkey
where l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON' and (
  p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG') and l_quantity between 1 and 11 and p_size between 1 and 5
  or p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK') and l_quantity between 10 and 20
    and p_size between 1 and 10
  or p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG') and l_quantity between 20 and 30
    and p_size between 1 and 15);

-- Q20: part promotion
select s_name, s_address from supplier join nation on n_nationkey = s_nationkey
where n_name = 'CANADA' and s_suppkey in (
  select ps_suppkey from partsupp join (
      select l_partkey, l_suppkey, 0.5 * sum(l_quantity) as half from lineitem
      where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' group by 1, 2) t
    on l_partkey = ps_partkey and l_suppkey = ps_suppkey
  where ps_partkey in (select p_partkey from part where p_name like 'forest%') and ps_availqty > half)
order by s_name;

-- Q21: suppliers who kept orders waiting
select s_name, count(*) as waited
from supplier join lineitem l1 on l1.l_suppkey = s_suppkey join orders on o_orderkey = l1.l_orderkey join nation on n_nationkey = s_nationkey
where o_orderstatus = 'F' and l1.l_receiptdate > l1.l_commitdate and n_name = 'SAUDI ARABIA'
  and exists (select from lineitem l2 where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey)
  and not exists (select from lineitem l3 where l3.l_orderkey = l1.l_orderkey and l3.l_suppkey <> l1.l_suppkey
    and l3.l_receiptdate > l3.l_commitdate)
group by 1 order by waited desc, 1 limit 100;

-- Q22: global sales opportunity
select code, count(*), sum(c_acctbal) from (
  select substring(c_phone from 1 for 2) as code, c_acctbal from customer
  where substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17')
    and c_acctbal > (select avg(c_acctbal) from customer where c_acctbal > 0
      and substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17'))
    and not exists (select from orders where o_custkey = c_custkey)) t
group by 1 order by 1;
