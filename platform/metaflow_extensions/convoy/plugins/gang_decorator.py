"""The step decorator `@convoy_gang`. `import metaflow` imports this, and nothing of Convoy before a flow runs."""

from metaflow.plugins.parallel_decorator import ParallelDecorator


class ConvoyGangDecorator(ParallelDecorator):
    """
    Makes a step that `num_parallel` leads to a supervised gang: each node's task runs an agent, which starts one worker
    per device, sees within a second when one fails anywhere, and owns all that the workers start.

    Use it alone, or above `@parallel`. The step's body calls `current.convoy.train` or `current.convoy.run`.

    Parameters
    ----------
    nproc_per_node : int, optional, default None
        Workers on each node. By default one for each GPU of the node, or one where there is none.

    MF Add To Current
    -----------------
    convoy -> convoy.launch.gang.current.CurrentConvoy
        Runs this node's part of the gang, and returns when the whole gang has ended well.

        @@ Returns
        -------
        CurrentConvoy
            `train(config)` trains as Convoy does, `run(entrypoint, args)` runs a script as torchrun would.
    """

    name = "convoy_gang"
    defaults = {"nproc_per_node": None}

    def __init__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        # As the flow's class is made: Metaflow asks for a user before it calls any hook, and takes root for none. It
        # starts local nodes by the `python` on PATH.
        from convoy.launch.checks.host import put_python_on_path, set_user_name

        set_user_name()
        put_python_on_path()
        super().__init__(*args, **kwargs)

    def step_init(self, flow, graph, step_name, decorators, environment, flow_datastore, logger):  # type: ignore[no-untyped-def]
        super().step_init(flow, graph, step_name, decorators, environment, flow_datastore, logger)
        # Where Metaflow's own decorator is there too, it starts the nodes: twice would be twice as many.
        self._metaflow_starts_nodes = any(type(decorator) is ParallelDecorator for decorator in decorators)
        from convoy.launch.gang.node import check_or_exit

        check_or_exit(step_name, self.attributes["nproc_per_node"], decorators)

    def runtime_init(self, flow, graph, package, run_id):  # type: ignore[no-untyped-def]
        gangs, cards = (
            [name for name in graph.sorted_nodes if any(d.name == wanted for d in graph[name].decorators)]
            for wanted in (self.name, "card")
        )
        self._launched = None
        if any(self is d for d in graph[gangs[0]].decorators):  # each gang's decorator is called: one reports the run
            has_job_option = any(parameter.name == "job" for _, parameter in flow._get_parameters())
            self._launched = {"flow": graph.name, "run": run_id, "has_job_option": has_job_option}
            self._cards = [name for name in (gangs[0], cards[-1]) if name in cards] if cards else []

    def runtime_finished(self, exception):  # type: ignore[no-untyped-def]
        if self._launched is not None:
            import atexit

            from convoy.launch.run_summary import LaunchedRun, print_run_summary

            # The last card is written as its step ends, and the gang's while it runs.
            cards = tuple(self._cards if exception else self._cards[::-1])
            # After all that Metaflow and its command line have to say, such as `Aborted!`.
            atexit.register(print_run_summary, LaunchedRun(**self._launched, cards=cards))

    def task_pre_step(self, step_name, task_datastore, metadata, run_id, task_id, flow, *rest):  # type: ignore[no-untyped-def]
        if not self._metaflow_starts_nodes:
            super().task_pre_step(step_name, task_datastore, metadata, run_id, task_id, flow, *rest)
        from metaflow import current

        from convoy.launch.gang.current import CurrentConvoy

        _, _, retries, *_ = rest  # after the graph and the number of this attempt
        current._update_env({"convoy": CurrentConvoy(self.attributes["nproc_per_node"], flow, retries)})

    def task_decorate(self, step_func, flow, graph, retry_count, max_user_code_retries, ubf_context):  # type: ignore[no-untyped-def]
        if self._metaflow_starts_nodes:
            return step_func
        return super().task_decorate(step_func, flow, graph, retry_count, max_user_code_retries, ubf_context)
