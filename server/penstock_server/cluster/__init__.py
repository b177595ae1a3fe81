"""`launcher --executor ray`: Ray places the machines that hold one model, and a driver keeps a launcher on each.

The driver runs where the command was given. It asks for a placement group with a bundle for each machine and starts
an actor on each bundle, which has a launcher with the shards of its machine. Beside the driver runs the launcher of
node 0, which has the router and no shards. All else is between the launchers, as without Ray: who joins, what is lost,
what is started again. Only `placement`, `nodes` and `driver` import Ray.
"""
