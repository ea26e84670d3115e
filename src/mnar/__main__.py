from mnar.cli import main

main()
