"""The paper and the benchmarks on top of the library: experiments, bench, report."""
