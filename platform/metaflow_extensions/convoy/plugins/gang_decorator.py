"""The step decorator `@convoy_gang`. `import metaflow` imports this, and nothing of Convoy before a flow runs."""

from metaflow.plugins.parallel_decorator import ParallelDecorator


class ConvoyGangDecorator(ParallelDecorator):
    """
    Makes a step that `num_parallel` leads to a supervised gang: each node's task runs an agent, which starts one worker
    per device, sees within a second when one fails anywhere, and owns all that the workers start.

    It stands alone, or above `@parallel`. The step's body calls `current.convoy.train` or `current.convoy.run`.

    Parameters
    ----------
    nproc_per_node : int, optional, default None
        Workers on each node. By default one for each GPU of the node, or one where there is none.

    MF Add To Current
    -----------------
    convoy -> convoy.launch.current_convoy.CurrentConvoy
        Runs this node's part of the gang, and returns when the whole gang has ended well.

        @@ Returns
        -------
        CurrentConvoy
            `train(config)` trains as Convoy does, `run(entrypoint, args)` runs a script as torchrun would.
    """

    name = "convoy_gang"
    defaults = {"nproc_per_node": None}

    def step_init(self, flow, graph, step_name, decorators, environment, flow_datastore, logger):  # type: ignore[no-untyped-def]
        super().step_init(flow, graph, step_name, decorators, environment, flow_datastore, logger)
        # Where Metaflow's own decorator is there too, it starts the nodes: twice would be twice as many.
        self._beside_parallel = any(type(decorator) is ParallelDecorator for decorator in decorators)
        from convoy.launch.gang_decorator import check_or_exit

        check_or_exit(step_name, self.attributes["nproc_per_node"], decorators)

    def task_pre_step(  # type: ignore[no-untyped-def]
        self,
        step_name,
        task_datastore,
        metadata,
        run_id,
        task_id,
        flow,
        graph,
        retry_count,
        max_user_code_retries,
        ubf_context,
        inputs,
    ):
        if not self._beside_parallel:
            super().task_pre_step(
                step_name,
                task_datastore,
                metadata,
                run_id,
                task_id,
                flow,
                graph,
                retry_count,
                max_user_code_retries,
                ubf_context,
                inputs,
            )
        from metaflow import current

        from convoy.launch.current_convoy import CurrentConvoy

        current._update_env({"convoy": CurrentConvoy(self.attributes["nproc_per_node"], flow)})

    def task_decorate(self, step_func, flow, graph, retry_count, max_user_code_retries, ubf_context):  # type: ignore[no-untyped-def]
        if self._beside_parallel:
            return step_func
        return super().task_decorate(step_func, flow, graph, retry_count, max_user_code_retries, ubf_context)
