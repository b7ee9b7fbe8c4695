"""How values.schema.json of the chart is made: ``settings`` (from the services), ``values`` (from values.yaml); and
the definition of the kind Model: ``model_resource``.
"""
