"""`python -m mindroom` is the `mindroom` command."""

from mindroom.cli import main

raise SystemExit(main())
